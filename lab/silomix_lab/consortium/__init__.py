"""A sample consortium: its folders and files, and its processes on this machine."""
