"""The page: what a run did, message by message, as one file that opens anywhere."""
