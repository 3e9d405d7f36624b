"""What all parties do alike with bytes: keys, signatures, onions, descriptors, TLS, framing."""
