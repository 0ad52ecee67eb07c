"""Jobs on whole stores: load, export, restore, copy and diff."""
