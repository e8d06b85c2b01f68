"""The output of a cell of many ranks: terminal_lines, line_folder, budget, screen, sinks."""
