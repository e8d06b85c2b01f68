"""What the operating system tells and limits: processes, folders, memory."""
