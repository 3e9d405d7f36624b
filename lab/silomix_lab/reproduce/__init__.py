"""`silomix reproduce`: the papers' experiments again, with what their claims come to."""
