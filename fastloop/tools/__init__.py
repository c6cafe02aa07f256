"""Tools for users who measure and tune their loops: reports, comparisons, tuning, the doctor."""
