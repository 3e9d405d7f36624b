"""Tables to try things on: made-up cohorts, a public data set, a CSV file."""
