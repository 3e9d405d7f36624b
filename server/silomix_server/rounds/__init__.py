"""A study's rounds at the coordinator: who can be asked, how far each is, what comes of it."""
