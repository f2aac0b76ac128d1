/* Asks cuGetProcAddress, and says which exported name is behind the address it gets. */
#define NO_MAIN
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>

static const char *name_of(void *address)
{
	Dl_info found;

	return address && dladdr(address, &found) && found.dli_sname ? found.dli_sname : "-";
}

int main(int count, char **words)
{
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
	void *address = NULL;
	int result;

	if (count == 4 && strcmp(words[1], "v1") == 0) {
		result = cuGetProcAddress(words[2], &address, atoi(words[3]), 0);
		printf("%d %s\n", result, name_of(address));
		return 0;
	}
	if (count != 4)
		return 2;
	result = cuGetProcAddress_v2(words[1], &address, atoi(words[2]),
				     strtoull(words[3], NULL, 10), &status);
	printf("%d %d %s\n", result, (int)status, name_of(address));
	return 0;
}
