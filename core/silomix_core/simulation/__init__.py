"""Whole studies in one process, and plans made with them."""
