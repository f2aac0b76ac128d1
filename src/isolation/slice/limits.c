/*
 * The limits file:
 *
 *	version=1
 *	slice=<id>
 *	revision=<decimal>
 *	policy=fixed
 *	memory_enforcer=driver
 *	device=<UUID> memory_bytes=<decimal> core_percent=<1..100>
 *
 * One entry a line; blank lines and lines that begin with # may stand between.
 * Pure: text in, value or reason out.
 */
#include "slice/limits.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { VERSION = 1, SLICE = 2, POLICY = 4, MEMORY = 8, CORE = 16, ENFORCER = 32, REVISION = 64 };

struct parser {
	struct limits *limits;
	unsigned line;
	unsigned seen; /* keys; those of a device since its line began */
	char *reason;
	size_t reason_bytes;
};

/* A stretch of the text; nothing is copied before it is judged. */
struct span {
	const char *start;
	size_t length;
};

#define TEXT(span) (int)(span).length, (span).start /* for "%.*s" */

__attribute__((format(printf, 2, 3))) static bool refuse(struct parser *parser, const char *format,
							 ...)
{
	const int used = snprintf(parser->reason, parser->reason_bytes, "line %u: ", parser->line);
	va_list arguments;

	va_start(arguments, format);
	if (used > 0 && (size_t)used < parser->reason_bytes)
		(void)vsnprintf(parser->reason + used, parser->reason_bytes - (size_t)used, format,
				arguments);
	va_end(arguments);
	return false;
}

static bool is(struct span span, const char *word)
{
	return span.length == strlen(word) && memcmp(span.start, word, span.length) == 0;
}

static bool is_decimal(struct span span, uint64_t *value)
{
	*value = 0;
	for (size_t i = 0; i < span.length; i++) {
		const unsigned digit = (unsigned char)span.start[i] - (unsigned)'0';

		if (digit > 9 || *value > (UINT64_MAX - digit) / 10)
			return false;
		*value = *value * 10 + digit;
	}
	return span.length > 0;
}

/* Names become file names: no slash, no leading dot. */
static bool is_name(struct span span)
{
	for (size_t i = 0; i < span.length; i++) {
		const char c = span.start[i];

		if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
		    c != '-' && c != '_' && !(c == '.' && i > 0))
			return false;
	}
	return span.length > 0 && span.length < LIMITS_NAME_BYTES;
}

/* "GPU-" or "MIG-" and 8-4-4-4-12 hexadecimal digits. */
static bool is_uuid(struct span span)
{
	static const char shape[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

	if (span.length != 4 + sizeof(shape) - 1 ||
	    (memcmp(span.start, "GPU-", 4) != 0 && memcmp(span.start, "MIG-", 4) != 0))
		return false;
	for (size_t i = 0; shape[i]; i++) {
		const char c = span.start[4 + i];
		const bool is_hex =
			(c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');

		if (shape[i] == 'x' ? !is_hex : c != '-')
			return false;
	}
	return true;
}

/* Cuts the text before `separator` off `rest`; the whole rest when there is none. */
static struct span cut(struct span *rest, char separator)
{
	const char *end = rest->length ? memchr(rest->start, separator, rest->length) : NULL;
	struct span head = {rest->start, end ? (size_t)(end - rest->start) : rest->length};
	const size_t gone = head.length + (end ? 1 : 0);

	rest->start += gone;
	rest->length -= gone;
	return head;
}

static bool once(struct parser *parser, unsigned bit, struct span key)
{
	if (parser->seen & bit)
		return refuse(parser, "%.*s twice", TEXT(key));
	parser->seen |= bit;
	return true;
}

static bool parse_pair(struct parser *parser, struct limits_card *card, struct span value)
{
	const struct span key = cut(&value, '=');
	const bool is_memory = is(key, "memory_bytes");
	uint64_t number;

	if (!is_memory && !is(key, "core_percent"))
		return refuse(parser, "unknown key \"%.*s\"", TEXT(key));
	if (!once(parser, is_memory ? MEMORY : CORE, key))
		return false;
	if (!is_decimal(value, &number))
		return refuse(parser, "%.*s is no decimal number: \"%.*s\"", TEXT(key),
			      TEXT(value));
	if (is_memory && number == LIMITS_NO_CAP)
		return refuse(parser, "memory_bytes too large");
	if (!is_memory && (number < 1 || number > 100))
		return refuse(parser, "core_percent is not 1 to 100");
	if (is_memory)
		card->memory_bytes = number;
	else
		card->core_percent = (uint32_t)number;
	return true;
}

static bool parse_device(struct parser *parser, struct span value)
{
	struct limits *limits = parser->limits;
	const struct span uuid = cut(&value, ' ');
	struct limits_card *card = &limits->cards[limits->card_count];

	parser->seen &= ~((unsigned)MEMORY | CORE);
	if (!is_uuid(uuid))
		return refuse(parser, "\"%.*s\" is no GPU or MIG UUID", TEXT(uuid));
	if (limits->card_count == LIMITS_CARDS)
		return refuse(parser, "more than %d devices", LIMITS_CARDS);
	*card = (struct limits_card){.memory_bytes = LIMITS_NO_CAP, .core_percent = 100};
	memcpy(card->uuid, uuid.start, uuid.length);
	for (unsigned i = 0; i < limits->card_count; i++)
		if (strcasecmp(limits->cards[i].uuid, card->uuid) == 0)
			return refuse(parser, "device %s twice", card->uuid);
	while (value.length) {
		const struct span pair = cut(&value, ' ');

		if (pair.length && !parse_pair(parser, card, pair))
			return false;
	}
	limits->card_count++;
	return true;
}

const char *limits_policy_name(enum limits_policy policy)
{
	static const char *const names[] = {[POLICY_FIXED] = "fixed",
					    [POLICY_WORK_CONSERVING] = "work-conserving",
					    [POLICY_NATIVE] = "native"};

	return names[policy];
}

static bool parse_policy(struct parser *parser, struct span value)
{
	for (unsigned policy = POLICY_FIXED; policy <= POLICY_NATIVE; policy++) {
		parser->limits->policy = (enum limits_policy)policy;
		if (is(value, limits_policy_name(parser->limits->policy)))
			return true;
	}
	return refuse(parser,
		      "unknown policy \"%.*s\": there are fixed (ACK's number 3), "
		      "work-conserving (1) and native (5)",
		      TEXT(value));
}

static bool parse_revision(struct parser *parser, struct span value)
{
	uint64_t number;

	if (!is_decimal(value, &number) || number > UINT32_MAX)
		return refuse(parser, "bad revision \"%.*s\"", TEXT(value));
	parser->limits->revision = (uint32_t)number;
	return true;
}

static bool parse_line(struct parser *parser, struct span line)
{
	struct span value = line;
	const struct span key = cut(&value, '=');

	if (key.length == line.length)
		return refuse(parser, "no key=value: \"%.*s\"", TEXT(line));
	if (is(key, "version"))
		return once(parser, VERSION, key) &&
		       (is(value, "1") || refuse(parser, "unknown version \"%.*s\"", TEXT(value)));
	if (is(key, "slice")) {
		if (!once(parser, SLICE, key))
			return false;
		if (!is_name(value))
			return refuse(parser, "bad slice id");
		memcpy(parser->limits->slice, value.start, value.length);
		return true;
	}
	if (is(key, "revision"))
		return once(parser, REVISION, key) && parse_revision(parser, value);
	if (is(key, "policy"))
		return once(parser, POLICY, key) && parse_policy(parser, value);
	if (is(key, "memory_enforcer")) {
		parser->limits->is_memory_by_driver = is(value, "driver");
		return once(parser, ENFORCER, key) &&
		       (parser->limits->is_memory_by_driver || is(value, "library") ||
			refuse(parser, "unknown enforcer \"%.*s\"", TEXT(value)));
	}
	if (is(key, "device"))
		return parse_device(parser, value);
	return refuse(parser, "unknown key \"%.*s\"", TEXT(key));
}

bool limits_parse(const char *text, size_t length, struct limits *limits, char *reason,
		  size_t reason_bytes)
{
	struct parser parser = {.limits = limits, .reason = reason, .reason_bytes = reason_bytes};
	struct span rest = {text, length};

	*limits = (struct limits){.policy = POLICY_FIXED};
	while (rest.length) {
		const struct span line = cut(&rest, '\n');

		parser.line++;
		if (line.length && line.start[0] != '#' && !parse_line(&parser, line))
			return false;
	}
	if (!(parser.seen & VERSION))
		return refuse(&parser, "no version");
	if (!(parser.seen & SLICE))
		return refuse(&parser, "no slice");
	return true;
}
