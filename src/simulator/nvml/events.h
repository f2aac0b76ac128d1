/* Which events a simulated card can report. */
#ifndef GPU_SIMULATOR_NVML_EVENTS_H
#define GPU_SIMULATOR_NVML_EVENTS_H

#define SUPPORTED_EVENTS                                                                           \
	((unsigned long long)(nvmlEventTypeXidCriticalError | nvmlEventTypeSingleBitEccError |     \
			      nvmlEventTypeDoubleBitEccError | nvmlEventTypePState |               \
			      nvmlEventTypeClock))

#endif
