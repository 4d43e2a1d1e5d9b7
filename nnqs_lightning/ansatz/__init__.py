"""Wave functions of determinants."""
