"""Questions about a broker and what it stores, and changes of it."""
