"""Where a hospital's records come from: each source gives rows, `records` makes persons of them."""
