#include "settings.h"

#include <stdlib.h>

/* Programs that change their environment while threads run are on their own, here as elsewhere. */
const char *setting(const char *name)
{
	return getenv(name); // NOLINT(concurrency-mt-unsafe)
}

uint64_t setting_number(const char *name, uint64_t otherwise)
{
	const char *text = setting(name);
	char *end;
	unsigned long long number = text ? strtoull(text, &end, 10) : 0;

	return text && end != text && *end == '\0' ? number : otherwise;
}
