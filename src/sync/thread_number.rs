//! The thread number: a small number that distinguishes the threads that use timers.

use std::cell::Cell;

/// Returns a small number of the calling thread, from 1: the smallest number that no other thread
/// had when this thread first called it. So no number exceeds the largest count of threads that
/// have had one at the same time.
#[inline]
pub(crate) fn thread_number() -> u32 {
    thread_local! {
        // Has no destructor: it costs no check, and can be read until the thread has ended.
        static NUMBER: Cell<u32> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(take_number());
        }
        number.get()
    })
}

/// Whether each number is taken, from 1 on.
///
/// Not from the lock facade: threads give their numbers back while they end, which no model knows,
/// and who holds the lock only looks at a byte for each thread.
static TAKEN: parking_lot::Mutex<Vec<bool>> = parking_lot::Mutex::new(Vec::new());

/// Gives a thread's number back when the thread ends. A destructor that reads the number after that
/// may share it with another thread: the two then contend, and nothing else happens.
struct GiveBack(u32);

impl Drop for GiveBack {
    fn drop(&mut self) {
        TAKEN.lock()[self.0 as usize - 1] = false;
    }
}

#[cold]
fn take_number() -> u32 {
    thread_local! {
        static GIVE_BACK: Cell<Option<GiveBack>> = const { Cell::new(None) };
    }
    let mut taken = TAKEN.lock();
    let free = taken.iter().position(|is_taken| !is_taken).unwrap_or(taken.len());
    if free == taken.len() {
        taken.push(true);
    }
    taken[free] = true;
    drop(taken);
    let number = free as u32 + 1;
    // Fails only so near the end of a thread that nothing more can be done in it.
    let _ = GIVE_BACK.try_with(|own| own.set(Some(GiveBack(number))));
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    /// Calls it when its thread ends, before or after the number was given back.
    struct AtTheEnd(mpsc::Sender<u32>);

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            let _ = self.0.send(thread_number());
        }
    }

    #[test]
    fn the_number_can_be_read_while_the_thread_ends() {
        thread_local! {
            static FIRST: Cell<Option<AtTheEnd>> = const { Cell::new(None) };
            static LAST: Cell<Option<AtTheEnd>> = const { Cell::new(None) };
        }
        for takes_it_before in [true, false] {
            let (sender, numbers) = mpsc::channel();
            let ends = move || {
                FIRST.set(Some(AtTheEnd(sender.clone())));
                let number = takes_it_before.then(thread_number);
                LAST.set(Some(AtTheEnd(sender)));
                number
            };
            let number = thread::spawn(ends).join().expect("it ends");
            let seen: Vec<u32> = numbers.iter().collect();
            assert_eq!(seen.len(), 2);
            assert!(seen[0] == seen[1] && number.is_none_or(|number| number == seen[0]));
        }
    }
}
