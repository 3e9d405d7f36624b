"""What every call between parties does alike, and what of gRPC is mended for it."""
