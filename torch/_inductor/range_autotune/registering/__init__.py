"""What users register: the forms they write it in, checked and brought into one."""
