package modern_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/modern"
)

// A row takes a write only from a holder whose token is not smaller than the one that wrote last:
//
//	CREATE TABLE orders (id BIGINT PRIMARY KEY, status TEXT, fence BIGINT NOT NULL DEFAULT 0)
const setStatus = "UPDATE orders SET status = ?, fence = ? WHERE id = ? AND fence <= ?"

var errFenced = errors.New("a later holder has written: the lock was lost")

func writeStatus(ctx context.Context, db *sql.DB, fence int64, id int, status string) error {
	result, err := db.ExecContext(ctx, setStatus, status, fence, id, fence)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		return errFenced
	}
	return nil
}

// Fencing at a row of a database: a holder that was stopped past its lease cannot overwrite what its successor has written.
func ExampleLock_Fence_sql() {
	pool, stop := server()
	defer stop()
	db := sql.OpenDB(&table{})
	defer db.Close()
	ctx := context.Background()
	locker, err := modern.New(pool, modern.Options{FenceTTL: time.Minute})
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	slow, err := locker.Acquire(ctx, "order.17")
	if err != nil {
		panic(err)
	}
	// The process is stopped past its lease; here the key is simply deleted.
	conn := pool.Get()
	_, _ = conn.Do("DEL", "order.17")
	_ = conn.Close()
	quick, err := locker.Acquire(ctx, "order.17")
	if err != nil {
		panic(err)
	}

	fmt.Println("the new holder:", writeStatus(ctx, db, quick.Fence(), 17, "shipped"))
	fmt.Println("the old holder:", writeStatus(ctx, db, slow.Fence(), 17, "cancelled"))
	fmt.Println("the new holder again:", writeStatus(ctx, db, quick.Fence(), 17, "delivered"))
	// Output:
	// the new holder: <nil>
	// the old holder: a later holder has written: the lock was lost
	// the new holder again: <nil>
}

// table is a driver with one row that knows one statement, so that the example needs no database.
type table struct {
	mu    sync.Mutex
	fence int64
}

func (t *table) Connect(context.Context) (driver.Conn, error) { return t, nil }
func (t *table) Driver() driver.Driver                        { return nil }
func (t *table) Begin() (driver.Tx, error)                    { return nil, errors.ErrUnsupported }
func (t *table) Close() error                                 { return nil }
func (t *table) NumInput() int                                { return 4 }
func (t *table) Query([]driver.Value) (driver.Rows, error)    { return nil, errors.ErrUnsupported }

func (t *table) Prepare(query string) (driver.Stmt, error) {
	if query != setStatus {
		return nil, errors.ErrUnsupported
	}
	return t, nil
}

func (t *table) Exec(args []driver.Value) (driver.Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fence, limit := args[1].(int64), args[3].(int64)
	if t.fence > limit {
		return driver.RowsAffected(0), nil
	}
	t.fence = fence
	return driver.RowsAffected(1), nil
}
