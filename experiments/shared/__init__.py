"""What several experiments share; nothing in here is started by itself."""
