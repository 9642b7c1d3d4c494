"""Android devices (and others that speak adb): push little, run exactly what was asked, lose nothing."""
