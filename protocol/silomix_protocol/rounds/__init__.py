"""What is signed and sealed in a round: descriptors, onions, tokens, statements, complaints."""
