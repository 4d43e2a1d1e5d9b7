"""Networks: tensors only, no chemistry."""
