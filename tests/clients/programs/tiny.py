"""tinygrad: tensors made, computed with and read back."""

from tinygrad import Device, Tensor

print(Device.DEFAULT)
tensor = Tensor.rand(64, 64).realize()
product = (tensor @ tensor + 1).relu().sum().realize()
print(tensor.shape, product.shape, product.dtype)
print(Tensor([1.0, 2.0, 3.0]).tolist())
