"""What an operator is shown of a study, and the yes that freezes data and reserves budget."""
