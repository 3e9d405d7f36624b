"""What an operator writes: the silo's file, the policy's rules, the hours."""
