"""The coordinator: asks queries, opens what the mixnet delivers, takes the next step."""
