//! Asking the controller: questions queue up and are answered one at a time, between ticks.

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::Controller;

/// More unanswered questions than this, and further ones are refused.
pub(super) const QUEUE: usize = 128;

type Question = Box<dyn for<'a> FnOnce(&'a mut Controller) -> BoxFuture<'a, ()> + Send>;

/// The controller has too much to answer, or is shutting down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the daemon is too busy or shutting down; try again")]
pub struct Busy;

/// The asking end. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    questions: mpsc::Sender<Question>,
}

/// The answering end, which the loop owns.
pub struct Requests {
    questions: mpsc::Receiver<Question>,
}

impl Handle {
    /// Both ends of a new queue.
    pub fn queue() -> (Self, Requests) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self { questions: sender }, Requests { questions: receiver })
    }

    /// Has `question` answered by the controller.
    ///
    /// # Errors
    /// If the queue is full or the controller is gone; then the question was not asked.
    pub async fn ask<T, F>(&self, question: F) -> Result<T, Busy>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Controller) -> BoxFuture<'a, T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let boxed: Question = Box::new(move |controller| {
            Box::pin(async move {
                // Whoever asked may have gone.
                let _ = reply.send(question(controller).await);
            })
        });
        self.questions.try_send(boxed).map_err(|_| Busy)?;
        answer.await.map_err(|_| Busy)
    }
}

impl Requests {
    /// Waits for the next question; `None` once nobody can ask any more.
    pub async fn next(&mut self) -> Option<PendingRequest> {
        self.questions.recv().await.map(PendingRequest)
    }

    /// The next question, if one is waiting.
    pub fn waiting(&mut self) -> Option<PendingRequest> {
        self.questions.try_recv().ok().map(PendingRequest)
    }
}

/// A question that waits for its answer.
pub struct PendingRequest(Question);

impl PendingRequest {
    /// Answers it.
    pub async fn answer(self, controller: &mut Controller) {
        (self.0)(controller).await;
    }
}
