"""What a mix keeps on disk: its database, the batches' bodies, and the thread that writes."""
