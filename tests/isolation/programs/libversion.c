/* A plugin without CUDA that has its own of a function that the program has too. */
const char *gnu_get_libc_version(void);
const char *gnu_get_libc_version(void)
{
	return "ours";
}

const char *plugin_version(void);
const char *plugin_version(void)
{
	return gnu_get_libc_version();
}
