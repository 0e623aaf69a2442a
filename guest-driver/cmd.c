// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The command channel: one request page, one response page, one command at a
 * time.
 *
 * A command is written to the request page and announced by a write to
 * REQUEST; ERR tells then whether the device took it.  A write to CTL sets ERR,
 * too, so it is no less one at a time.  A command with a
 * response is finished when the response page holds this command's cookie and
 * acknowledgment, which the device announces by vector 0.  The page decides,
 * not the interrupt: a late one of an older command does no harm, and a lost
 * one costs half a second.
 *
 * Waits cannot be interrupted: a command that the device carries out must not
 * be abandoned, or an object would exist of which nobody knows, in memory that
 * is used for something else.  They end all the same, because a device that is
 * gone (registers read all-ones) is found out within half a second, and a
 * device that does not answer for ten seconds is given up.
 *
 * A device that is given up may be alive all the same and write to memory.  So
 * it is reset before anybody learns that it is dead who then gives memory back:
 * no command returns, and no work request is flushed, before that.
 */
#include <linux/delay.h>

#include "pvrdma.h"

#define CMD_TIMEOUT (10 * HZ)
#define CMD_LOOK    (HZ / 2)

/* The largest errno a device may mean by a value of ERR. */
#define CMD_MAX_ERRNO EHWPOISON

/**
 * pvrdma_set_dead() - expect nothing of the device any more
 * @dev: device
 * @why: for the log
 *
 * Commands fail from now on.  port.work resets the device, has what kernel users
 * posted flushed, and tells everybody.  Any context.
 */
void pvrdma_set_dead(struct pvrdma_dev *dev, const char *why)
{
	if (xchg(&dev->dead, true))
		return;
	dev_err(&dev->pdev->dev, "device failed: %s\n", why);
	pvrdma_port_changed(dev);
}

/**
 * pvrdma_answers() - is anybody behind the registers?
 * @regs: BAR1
 * @slow: set if nobody is, and that was long to be seen
 *
 * A distribution's QEMU waits seconds for a daemon that hangs, at each access
 * and with all of the machine; a QEMU that looks for another daemon does not.
 *
 * Return: true if VERSION can be read.
 */
bool pvrdma_answers(void __iomem *regs, bool *slow)
{
	ktime_t begin = ktime_get();
	bool answers = readl(regs + PVRDMA_REG_VERSION) != U32_MAX;

	*slow = !answers && ktime_ms_delta(ktime_get(), begin) > MSEC_PER_SEC;
	return answers;
}

/* Take all memory away from the device; it gets none again. */
static void cmd_quiesce(struct pvrdma_dev *dev)
{
	bool gone, slow;

	if (dev->cmd.quiet)
		return;
	gone = pvrdma_read(dev, PVRDMA_REG_VERSION) == U32_MAX;
	pvrdma_write(dev, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
	/*
	 * The reset is done, not posted, when this returns.  The read before it
	 * may have been what found the device dead: any QEMU waits then.
	 */
	pvrdma_answers(dev->regs, &slow);
	dev->cmd.gone = gone && !slow;
	/* Who sees it set may give memory back. */
	smp_store_release(&dev->cmd.quiet, true);
}

/**
 * pvrdma_quiesce() - have the device use no memory, for good
 * @dev: device
 *
 * Commands fail from now on.  May sleep, until a running command ends.
 */
void pvrdma_quiesce(struct pvrdma_dev *dev)
{
	WRITE_ONCE(dev->dead, true);
	mutex_lock(&dev->cmd.lock);
	cmd_quiesce(dev);
	mutex_unlock(&dev->cmd.lock);
}

static bool cmd_gone(struct pvrdma_dev *dev)
{
	if (pvrdma_read(dev, PVRDMA_REG_VERSION) != U32_MAX)
		return false;
	pvrdma_set_dead(dev, "its registers read all-ones");
	return true;
}

/* Is the answer there?  1 yes, 0 no, or a negative errno. */
static int cmd_answer(struct pvrdma_dev *dev, void *resp, size_t resp_size,
		      u32 opcode)
{
	const struct pvrdma_resp_hdr *slot = dev->cmd.resp;
	struct pvrdma_resp_hdr *hdr = resp;

	if (READ_ONCE(slot->response) != dev->cmd.cookie ||
	    READ_ONCE(slot->ack) == 0)
		return 0;
	dma_rmb();
	memcpy(resp, dev->cmd.resp, resp_size);
	if (hdr->response != dev->cmd.cookie)
		return 0;
	if (hdr->ack != PVRDMA_CMD_RESP(opcode))
		return -EIO;
	if (hdr->err) {
		dev_dbg(&dev->pdev->dev, "command %u: error %u\n", opcode,
			hdr->err);
		return -EINVAL;
	}
	return 1;
}

static int cmd_wait(struct pvrdma_dev *dev, void *resp, size_t resp_size,
		    u32 opcode)
{
	unsigned long end = jiffies + CMD_TIMEOUT;
	int ret;

	for (;;) {
		wait_for_completion_timeout(&dev->cmd.done, CMD_LOOK);
		ret = cmd_answer(dev, resp, resp_size, opcode);
		if (ret)
			return ret < 0 ? ret : 0;
		if (pvrdma_dead(dev) || cmd_gone(dev))
			return -EIO;
		if (time_after(jiffies, end))
			break;
	}
	/* What it does with the command's memory later cannot be known. */
	pvrdma_set_dead(dev, "no answer to a command within 10 s");
	return -ETIMEDOUT;
}

static int cmd_run(struct pvrdma_dev *dev, void *req, size_t req_size,
		   void *resp, size_t resp_size, u32 opcode)
{
	struct pvrdma_req_hdr *hdr = req;
	u32 err;

	if (pvrdma_dead(dev))
		return -EIO;
	hdr->response = ++dev->cmd.cookie;
	hdr->cmd = opcode;
	memset(dev->cmd.resp, 0, sizeof(struct pvrdma_resp_hdr));
	memset(dev->cmd.req, 0, PVRDMA_PAGE_SIZE);
	memcpy(dev->cmd.req, req, req_size);
	reinit_completion(&dev->cmd.done);
	pvrdma_write(dev, PVRDMA_REG_REQUEST, 0);
	err = pvrdma_read(dev, PVRDMA_REG_ERR);
	if (err == U32_MAX) {
		pvrdma_set_dead(dev, "its registers read all-ones");
		return -EIO;
	}
	if (err) {
		dev_dbg(&dev->pdev->dev, "command %u: error %u\n", opcode, err);
		/* A device that died answers some commands still. */
		if (cmd_gone(dev))
			return -EIO;
		return err <= CMD_MAX_ERRNO ? -(int)err : -EIO;
	}
	return resp ? cmd_wait(dev, resp, resp_size, opcode) : 0;
}

/**
 * pvrdma_cmd() - run a command
 * @dev: device
 * @req: request; its header is filled in here
 * @req_size: bytes of it
 * @resp: gets the response, NULL if the command has none
 * @resp_size: bytes of it
 * @opcode: PVRDMA_CMD_*
 *
 * May sleep; signals do not end it.
 *
 * Return: 0, -EIO if the device is gone or answered nonsense, -ETIMEDOUT, or
 * what the device returned.  If it is dead it uses no memory any more.
 */
int pvrdma_cmd(struct pvrdma_dev *dev, void *req, size_t req_size, void *resp,
	       size_t resp_size, u32 opcode)
{
	int ret;

	if (WARN_ON_ONCE(req_size > PVRDMA_PAGE_SIZE ||
			 resp_size > PVRDMA_PAGE_SIZE))
		return -EINVAL;
	mutex_lock(&dev->cmd.lock);
	ret = cmd_run(dev, req, req_size, resp, resp_size, opcode);
	if (pvrdma_dead(dev))
		cmd_quiesce(dev);
	mutex_unlock(&dev->cmd.lock);
	return ret;
}

/**
 * pvrdma_cmd_ctl() - write CTL while commands may run
 * @dev: device
 * @value: PVRDMA_CTL_UNQUIESCE or PVRDMA_EXT_CTL_LINK_DOWN
 *
 * May sleep, until a running command ends.  Nothing is written to a dead device.
 */
void pvrdma_cmd_ctl(struct pvrdma_dev *dev, u32 value)
{
	mutex_lock(&dev->cmd.lock);
	if (!pvrdma_dead(dev))
		pvrdma_write(dev, PVRDMA_REG_CTL, value);
	mutex_unlock(&dev->cmd.lock);
}

static int cmd_destroy(struct pvrdma_dev *dev, u32 opcode, u32 handle)
{
	struct pvrdma_cmd_handle req = { .handle = handle };

	return pvrdma_cmd(dev, &req, sizeof(req), NULL, 0, opcode);
}

/* The command to end an object came to @ret. */
static void cmd_destroy_result(struct pvrdma_dev *dev, u32 opcode, u32 handle,
			       int ret)
{
	if (!ret || pvrdma_quiet(dev))
		return;
	dev_warn(&dev->pdev->dev, "command %u failed for handle %u: %d\n",
		 opcode, handle, ret);
	pvrdma_set_dead(dev, "it refuses to destroy an object");
	pvrdma_quiesce(dev);
}

/**
 * pvrdma_cmd_destroy() - run a command that ends an object
 * @dev: device
 * @opcode: PVRDMA_CMD_DESTROY_*
 * @handle: the object
 *
 * The device does not use the object when this returns.  One that refuses may go
 * on doing so, and nobody could act on a failure: a program that ends takes its
 * objects along, whatever a driver says.  So then the device is given up, and has
 * no memory any more.
 */
void pvrdma_cmd_destroy(struct pvrdma_dev *dev, u32 opcode, u32 handle)
{
	cmd_destroy_result(dev, opcode, handle, cmd_destroy(dev, opcode, handle));
}

/**
 * pvrdma_cmd_destroy_idle() - the same of an object that may be in use
 * @dev: device
 * @opcode: PVRDMA_CMD_DESTROY_*
 * @handle: the object
 *
 * For what only the device knows to be in use: a program's windows.
 *
 * Return: 0, or -EBUSY: it is, and is still there.
 */
int pvrdma_cmd_destroy_idle(struct pvrdma_dev *dev, u32 opcode, u32 handle)
{
	int ret = cmd_destroy(dev, opcode, handle);

	if (ret == -EBUSY && !pvrdma_quiet(dev))
		return ret;
	cmd_destroy_result(dev, opcode, handle, ret);
	return 0;
}
