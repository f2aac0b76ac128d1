/* A plugin whose constructor calls the program back, with the loader's lock as
 * every constructor. */
#include <stdint.h>
#include <stdlib.h>

__attribute__((constructor)) static void construct(void)
{
	const char *address = getenv("CONSTRUCTOR_CALLS");

	if (address)
		((void (*)(void))(uintptr_t)strtoull(address, NULL, 16))();
}
