"""The machine around it that frees stuck ranks and makes the pool whole again. Pure."""
