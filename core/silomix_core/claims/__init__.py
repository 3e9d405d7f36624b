"""The claims that may be made: figures behind mixes, targets for these, what an audit proves."""
