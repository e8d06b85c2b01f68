"""The state machine of a pool: stimuli in, actions out. Pure."""
