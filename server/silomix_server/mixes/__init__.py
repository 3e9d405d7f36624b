"""The coordinator towards the mixes: keys, batches, tokens, and opening what was released."""
