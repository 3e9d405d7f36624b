"""What a study leaves at the server: journal, hold-out figures, results."""
