/*
 * The table. How to read a row: what happens in `from` on `event`. It is ordered by state; in each
 * state first what callers ask for, then what happens by itself. docs/life-cycle.md is printed from
 * it.
 *
 * Deletion leads out of every state. A request that has no row in a state with a running transition
 * waits or is refused as busy; in any other state it is refused as not fitting.
 */
#include "state/state.h"

#include "base/alloc.h"

#define GROWS true
#define KEEPS false
#define ENDS true
#define STAYS false
#define BUILT true
#define PLANNED false

#define ROW(from, ev, to, grows, ends, reach, note) { LIFE_##from, LIFE_EV_##ev, LIFE_##to, grows, ends, reach, note }

const struct life_rule life_rules[] = {
	ROW(NONE, CREATE, CREATING, GROWS, STAYS, BUILT,
	    "Generation 1. A fork's child begins here too."),

	ROW(CREATING, DELETE, DELETING, KEEPS, ENDS, BUILT, "Waits until the create has ended."),
	ROW(CREATING, DONE, RUNNING, KEEPS, STAYS, BUILT,
	    "The record was committed on the node, then the execution was announced."),
	ROW(CREATING, FAILED, FAILED, KEEPS, ENDS, BUILT, "What was made is removed again."),
	ROW(CREATING, CRASH, FAILED, KEEPS, ENDS, BUILT,
	    "It was never announced; what was made is removed again."),
	ROW(CREATING, GUEST_OFF, FAILED, KEEPS, ENDS, BUILT,
	    "Powered off before it was ready; what was made is removed again."),
	ROW(CREATING, GUEST_REBOOT, FAILED, KEEPS, ENDS, BUILT,
	    "Rebooted before it was ready; what was made is removed again."),
	ROW(CREATING, NODE_LOST, CREATING, GROWS, ENDS, PLANNED,
	    "Placed on another node; nothing was announced yet."),

	ROW(RUNNING, PAUSE, PAUSING, KEEPS, STAYS, BUILT,
	    "Memory stays on the node, CPU is freed."),
	ROW(RUNNING, SUSPEND, SUSPENDING, KEEPS, STAYS, PLANNED, "A full snapshot, uploaded."),
	ROW(RUNNING, MOVE, MOVING, GROWS, ENDS, PLANNED,
	    "Begins on the other node after the old execution was retired."),
	ROW(RUNNING, STOP, STOPPING, KEEPS, ENDS, BUILT, "The VM ends, the disk stays."),
	ROW(RUNNING, START, STARTING, GROWS, ENDS, BUILT,
	    "The execution is replaced by a cold boot from its disk."),
	ROW(RUNNING, DELETE, DELETING, KEEPS, ENDS, BUILT, "Nothing stays."),
	ROW(RUNNING, FORK, FORKING, KEEPS, STAYS, PLANNED,
	    "Children branch off; each begins with generation 1."),
	ROW(RUNNING, ROLLBACK, ROLLING_BACK, GROWS, ENDS, PLANNED,
	    "To a kept snapshot; ID and time-out stay."),
	ROW(RUNNING, CRASH, STOPPED, KEEPS, ENDS, BUILT,
	    "Reason \"crashed\"; the disk stays. With a full checkpoint on the node the state will be restoring, a new generation."),
	ROW(RUNNING, GUEST_OFF, STOPPED, KEEPS, ENDS, BUILT,
	    "Power-off inside the guest; reason \"guest-off\"."),
	ROW(RUNNING, GUEST_REBOOT, STARTING, GROWS, ENDS, BUILT,
	    "The node reports stopped with reason \"guest-reboot\"; the control plane starts the next execution from the disk."),
	ROW(RUNNING, NODE_LOST, RESTORING, GROWS, ENDS, PLANNED,
	    "From the newest restorable snapshot, after the last capability for the old execution has expired."),

	ROW(PAUSING, DELETE, DELETING, KEEPS, ENDS, BUILT, "Waits until the pause has ended."),
	ROW(PAUSING, DONE, PAUSED, KEEPS, STAYS, BUILT, "The VM is stopped on its node."),
	ROW(PAUSING, FAILED, RUNNING, KEEPS, STAYS, BUILT, "The VM goes on."),
	ROW(PAUSING, CRASH, STOPPED, KEEPS, ENDS, BUILT, "As a crash while running."),
	ROW(PAUSING, GUEST_OFF, STOPPED, KEEPS, ENDS, BUILT, "The guest was faster."),
	ROW(PAUSING, GUEST_REBOOT, STARTING, GROWS, ENDS, BUILT,
	    "The guest was faster: the pause fails, then as while running."),
	ROW(PAUSING, NODE_LOST, RESTORING, GROWS, ENDS, PLANNED, "As while running."),

	ROW(PAUSED, RESUME, RESUMING, KEEPS, STAYS, BUILT,
	    "On the same worker: the same execution goes on."),
	ROW(PAUSED, SUSPEND, SUSPENDING, KEEPS, STAYS, PLANNED, "Its snapshot is uploaded."),
	ROW(PAUSED, MOVE, MOVING, GROWS, ENDS, PLANNED,
	    "Begins on the other node after the old execution was retired."),
	ROW(PAUSED, STOP, STOPPING, KEEPS, ENDS, BUILT,
	    "It goes on for as long as the guest needs to write its disk; the memory is given up, the disk stays."),
	ROW(PAUSED, START, STARTING, GROWS, ENDS, BUILT,
	    "The execution is replaced by a cold boot from its disk."),
	ROW(PAUSED, DELETE, DELETING, KEEPS, ENDS, BUILT, "Nothing stays."),
	ROW(PAUSED, ROLLBACK, ROLLING_BACK, GROWS, ENDS, PLANNED, "To a kept snapshot."),
	ROW(PAUSED, CRASH, STOPPED, KEEPS, ENDS, BUILT,
	    "The stopped VM's process died: its disk stays. With a checkpoint of the pause the state will be restoring."),
	ROW(PAUSED, NODE_LOST, RESTORING, GROWS, ENDS, PLANNED,
	    "From the newest restorable snapshot."),

	ROW(RESUMING, DELETE, DELETING, KEEPS, ENDS, BUILT, "Waits until the resume has ended."),
	ROW(RESUMING, DONE, RUNNING, KEEPS, STAYS, BUILT, "The same execution goes on."),
	ROW(RESUMING, FAILED, PAUSED, KEEPS, STAYS, BUILT, "It stays paused."),
	ROW(RESUMING, CRASH, STOPPED, KEEPS, ENDS, BUILT, "As a crash while running."),
	ROW(RESUMING, GUEST_OFF, STOPPED, KEEPS, ENDS, BUILT, "The resume fails, then as while running."),
	ROW(RESUMING, GUEST_REBOOT, STARTING, GROWS, ENDS, BUILT,
	    "The resume fails, then as while running."),
	ROW(RESUMING, NODE_LOST, RESTORING, GROWS, ENDS, PLANNED, "As while running."),

	ROW(SUSPENDING, DELETE, DELETING, KEEPS, ENDS, PLANNED,
	    "Waits until the suspend has ended."),
	ROW(SUSPENDING, DONE, SUSPENDED, KEEPS, ENDS, PLANNED,
	    "Every artifact is stored; only now the node's resources are freed."),
	ROW(SUSPENDING, FAILED, PAUSED, KEEPS, STAYS, PLANNED,
	    "What was uploaded is never restorable; the VM is still there."),
	ROW(SUSPENDING, CRASH, STOPPED, KEEPS, ENDS, PLANNED,
	    "The unfinished snapshot is dropped, the disk stays."),
	ROW(SUSPENDING, NODE_LOST, RESTORING, GROWS, ENDS, PLANNED,
	    "From the newest snapshot that is complete."),

	ROW(SUSPENDED, RESTORE, RESTORING, GROWS, STAYS, PLANNED,
	    "On any node; processes and memory included."),
	ROW(SUSPENDED, START, STARTING, GROWS, STAYS, PLANNED,
	    "A cold boot from the snapshot's disk."),
	ROW(SUSPENDED, DELETE, DELETING, KEEPS, STAYS, PLANNED, "Its artifacts go too."),
	ROW(SUSPENDED, ROLLBACK, ROLLING_BACK, GROWS, STAYS, PLANNED, "To a kept snapshot."),
	ROW(SUSPENDED, CRASH, SUSPENDED, KEEPS, STAYS, PLANNED,
	    "No VM runs; a late report changes nothing."),
	ROW(SUSPENDED, NODE_LOST, SUSPENDED, KEEPS, STAYS, PLANNED, "No node has it."),

	ROW(RESTORING, DELETE, DELETING, KEEPS, ENDS, PLANNED,
	    "Waits until the restore has ended."),
	ROW(RESTORING, DONE, RUNNING, KEEPS, STAYS, PLANNED, "Goes on from the captured state."),
	ROW(RESTORING, FAILED, SUSPENDED, KEEPS, ENDS, PLANNED, "The snapshot is as it was."),
	ROW(RESTORING, CRASH, SUSPENDED, KEEPS, ENDS, PLANNED, "The snapshot is as it was."),
	ROW(RESTORING, NODE_LOST, RESTORING, GROWS, ENDS, PLANNED, "On another node."),

	ROW(MOVING, DELETE, DELETING, KEEPS, ENDS, PLANNED, "Waits until the move has ended."),
	ROW(MOVING, DONE, RUNNING, KEEPS, STAYS, PLANNED, "The new execution serves."),
	ROW(MOVING, FAILED, RESTORING, GROWS, ENDS, PLANNED, "On the node where it came from."),
	ROW(MOVING, CRASH, RESTORING, GROWS, ENDS, PLANNED,
	    "From the state that was captured for the move."),
	ROW(MOVING, NODE_LOST, RESTORING, GROWS, ENDS, PLANNED,
	    "From the newest restorable snapshot."),

	ROW(STOPPING, DELETE, DELETING, KEEPS, ENDS, BUILT, "Waits until the stop has ended."),
	ROW(STOPPING, DONE, STOPPED, KEEPS, ENDS, BUILT,
	    "Nothing of the execution is left on the node."),
	ROW(STOPPING, FAILED, STOPPED, KEEPS, ENDS, BUILT,
	    "The node has no such execution any more; the disk is as it was left."),
	ROW(STOPPING, CRASH, STOPPING, KEEPS, ENDS, BUILT, "Its end was wanted: the stop goes on."),
	ROW(STOPPING, GUEST_OFF, STOPPING, KEEPS, ENDS, BUILT,
	    "Its end was wanted: the stop goes on."),
	ROW(STOPPING, GUEST_REBOOT, STOPPING, KEEPS, ENDS, BUILT,
	    "Its end was wanted: the stop goes on."),
	ROW(STOPPING, NODE_LOST, STOPPED, KEEPS, ENDS, PLANNED,
	    "The disk comes from the newest restorable snapshot."),

	ROW(STOPPED, START, STARTING, GROWS, STAYS, BUILT, "A cold boot from its disk."),
	ROW(STOPPED, MOVE, MOVING, GROWS, STAYS, PLANNED, "The disk moves, then it starts there."),
	ROW(STOPPED, DELETE, DELETING, KEEPS, STAYS, BUILT, "The disk goes."),
	ROW(STOPPED, ROLLBACK, ROLLING_BACK, GROWS, STAYS, PLANNED, "To a kept snapshot."),
	ROW(STOPPED, CRASH, STOPPED, KEEPS, STAYS, BUILT,
	    "No VM runs; a late report changes nothing."),
	ROW(STOPPED, NODE_LOST, STOPPED, KEEPS, STAYS, PLANNED,
	    "The disk comes from the newest restorable snapshot."),

	ROW(STARTING, DELETE, DELETING, KEEPS, ENDS, BUILT, "Waits until the start has ended."),
	ROW(STARTING, DONE, RUNNING, KEEPS, STAYS, BUILT,
	    "The record was committed on the node, then the execution was announced."),
	ROW(STARTING, FAILED, STOPPED, KEEPS, ENDS, BUILT,
	    "The disk stays; start tries again with the next generation."),
	ROW(STARTING, CRASH, STOPPED, KEEPS, ENDS, BUILT,
	    "It was never announced; the disk stays."),
	ROW(STARTING, GUEST_OFF, STOPPED, KEEPS, ENDS, BUILT,
	    "Powered off before it was ready; the disk stays."),
	ROW(STARTING, GUEST_REBOOT, STOPPED, KEEPS, ENDS, BUILT,
	    "Rebooted before it was ready: no loop of starts; the disk stays."),
	ROW(STARTING, NODE_LOST, STARTING, GROWS, ENDS, PLANNED,
	    "On another node, from the newest restorable disk."),

	ROW(FORKING, DELETE, DELETING, KEEPS, ENDS, PLANNED, "Waits until the children are made."),
	ROW(FORKING, DONE, RUNNING, KEEPS, STAYS, PLANNED,
	    "The source goes on; its generation stays."),
	ROW(FORKING, FAILED, RUNNING, KEEPS, STAYS, PLANNED,
	    "The source goes on; there are no children."),
	ROW(FORKING, CRASH, STOPPED, KEEPS, ENDS, PLANNED,
	    "As a crash while running; unfinished children are removed."),
	ROW(FORKING, GUEST_OFF, STOPPED, KEEPS, ENDS, PLANNED, "The guest was faster."),
	ROW(FORKING, NODE_LOST, RESTORING, GROWS, ENDS, PLANNED, "As while running."),

	ROW(ROLLING_BACK, DELETE, DELETING, KEEPS, ENDS, PLANNED,
	    "Waits until the rollback has ended."),
	ROW(ROLLING_BACK, DONE, RUNNING, KEEPS, STAYS, PLANNED,
	    "The answer says what became of processes and streams."),
	ROW(ROLLING_BACK, FAILED, STOPPED, KEEPS, ENDS, PLANNED,
	    "The disk is the one from before the rollback."),
	ROW(ROLLING_BACK, CRASH, STOPPED, KEEPS, ENDS, PLANNED, "The disk is the snapshot's."),
	ROW(ROLLING_BACK, NODE_LOST, RESTORING, GROWS, ENDS, PLANNED,
	    "From the newest restorable snapshot."),

	ROW(DELETING, DONE, NONE, KEEPS, ENDS, BUILT, "Nothing stays; the ID is never used again."),
	ROW(DELETING, FAILED, FAILED, KEEPS, ENDS, BUILT,
	    "Something on the node could not be removed; delete tries again."),
	ROW(DELETING, CRASH, DELETING, KEEPS, ENDS, BUILT,
	    "Its end was wanted: the delete goes on."),
	ROW(DELETING, GUEST_OFF, DELETING, KEEPS, ENDS, BUILT,
	    "Its end was wanted: the delete goes on."),
	ROW(DELETING, GUEST_REBOOT, DELETING, KEEPS, ENDS, BUILT,
	    "Its end was wanted: the delete goes on."),
	ROW(DELETING, NODE_LOST, NONE, KEEPS, ENDS, PLANNED,
	    "A node that comes back drops what nobody claims."),

	ROW(FAILED, DELETE, DELETING, KEEPS, STAYS, BUILT, "The only way out."),
	ROW(FAILED, CRASH, FAILED, KEEPS, STAYS, BUILT,
	    "No VM runs; a late report changes nothing."),
	ROW(FAILED, NODE_LOST, FAILED, KEEPS, STAYS, PLANNED, "Nothing of it is needed."),
};

const unsigned life_rules_len = ARRAY_LEN(life_rules);
