"""What users look at their loops with: reports, comparisons, tuning, the doctor."""
