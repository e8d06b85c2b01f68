"""The rank process: runs cells. The only folder that imports torch."""
