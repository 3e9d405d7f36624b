"""Where a hospital's records come from: each source gives rows, `people` makes persons of them."""
