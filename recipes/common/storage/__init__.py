"""Files that are whole or not there, and locks of folders."""
