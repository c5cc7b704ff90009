"""Changes into tables: functions from DataFrame to DataFrame that know no sink."""
