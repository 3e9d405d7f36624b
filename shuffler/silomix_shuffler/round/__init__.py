"""A round at a mix: reports taken in, opened, permuted, delivered; or disclosed if it is void."""
