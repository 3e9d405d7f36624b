"""The consortium's authority: invites parties, certifies their keys, revokes them."""
