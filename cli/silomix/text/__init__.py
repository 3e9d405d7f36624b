"""Studies, data and complaints in plain language, for the person who has to say yes or no."""
