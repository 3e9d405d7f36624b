"""How a party joins a consortium and stays in it: invitation, membership, roster, renewal."""
