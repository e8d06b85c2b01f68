"""The lines of ``%ddp`` and ``%%ddp``: parsing, help, completion, verbs."""
