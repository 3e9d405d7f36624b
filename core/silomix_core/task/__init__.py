"""What is learned from what: features, labels, losses, and how rows become a record."""
