"""The pages of docs/reference/, made from the code so that they cannot say anything else than it does."""
